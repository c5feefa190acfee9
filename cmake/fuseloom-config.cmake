# find_package(fuseloom) gives the target fuseloom::fuseloom.
include(CMakeFindDependencyMacro)
find_dependency(fmt)
find_dependency(Threads)
include(${CMAKE_CURRENT_LIST_DIR}/fuseloom-targets.cmake)
